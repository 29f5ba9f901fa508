"""What happens before a client has a session: it waits, its session is sealed, it is welcomed."""
