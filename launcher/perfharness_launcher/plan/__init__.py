"""Options and machine -> what will be started, with every conflict found before anything starts."""
