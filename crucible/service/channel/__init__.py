"""The channel between the HTTP process and the engine's process: messages, both ends, and the process."""
