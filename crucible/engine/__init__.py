"""Many requests at once: requests, the scheduler, the loop and the engine (imported where needed)."""
