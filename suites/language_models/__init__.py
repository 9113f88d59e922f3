"""Language models on a CPU: tokens a second, memory and fine-tuning, against what users take."""
