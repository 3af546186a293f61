"""What leaves a run for other tools: wrong items for annotation, OpenTelemetry spans."""
