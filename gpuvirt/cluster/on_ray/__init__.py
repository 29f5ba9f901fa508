"""A pool whose scheduler is an actor of a Ray cluster: Ray finds it, and starts it anew on any of its nodes. No other part of gpuvirt imports Ray."""
