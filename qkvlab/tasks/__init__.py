"""What is learned: texts, images and lists, as batches of tensors."""
