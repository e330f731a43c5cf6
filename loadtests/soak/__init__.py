"""Does the gateway stay as it is when it runs on and on? Made short by making every size small."""
