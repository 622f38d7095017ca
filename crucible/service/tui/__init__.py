"""The chat in a terminal: sources of answers, the conversation, and the screen around it."""
