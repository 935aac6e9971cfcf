"""The paper's tables and figures: our values and the published ones beside them."""
