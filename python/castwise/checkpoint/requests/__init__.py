"""What a conversion is asked to do, and the plan that follows."""
