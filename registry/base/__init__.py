"""What several rooms use and no registry is: processes, threads, control groups, wording, JSON."""
