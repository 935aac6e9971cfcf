"""Token and confidence of hidden states without their full logits."""
