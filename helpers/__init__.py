"""Reusable pieces of the book: what a chapter builds once, later chapters import from here."""
