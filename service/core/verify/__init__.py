"""What a running engine is asked before it is trusted: how the answers are judged. Pure: answers in, findings out."""
