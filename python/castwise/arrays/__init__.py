"""Arrays of numpy and of other libraries: cast, compared, found in trees, mapped to formats."""
