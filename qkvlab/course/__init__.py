"""The labs as a course: their list, their shared furniture and their exercises."""
