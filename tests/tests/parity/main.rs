//! Logits, tokens and perplexities against llama.cpp's, and against references in f64.

mod altered;
mod bard;
mod random;
mod reference;
mod refusal;
mod smollm2;
