//! Logits, tokens and perplexities against llama.cpp's.

mod bard;
mod random;
mod refusal;
mod smollm2;
