"""What other libraries hold, tuned where it is: DataLoader, Lightning, Transformers, Accelerate."""
