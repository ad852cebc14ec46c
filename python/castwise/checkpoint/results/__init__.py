"""What is returned and shown of checkpoints: rows, reports, summaries, previews, model cards."""
