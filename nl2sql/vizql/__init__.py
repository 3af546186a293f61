"""VizQL structured queries: their language, data sources, validation, refinement and compilation to SQL."""
