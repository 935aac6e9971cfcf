"""The nouns of the project: configuration, model and hardware facts, costs, records. numpy only."""
