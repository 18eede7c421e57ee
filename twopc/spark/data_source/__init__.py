"""``format("twopc")``: a sink as a Spark data source."""
