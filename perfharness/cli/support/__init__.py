"""What several verbs share: options, settings, output, progress."""
