"""What a batch does to one table: decide, which writes nothing, then commit."""
