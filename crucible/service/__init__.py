"""Many clients, one engine: HTTP faces, the channel to the engine's process, the chat in a terminal."""
