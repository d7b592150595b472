"""The training loop, its optimisers and recipes, and the records it leaves on disk."""
