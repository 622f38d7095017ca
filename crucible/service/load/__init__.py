"""The load client: what is asked and when, how it is sent, and what the answers' times say."""
