//! Writes on from a prompt: `cargo run --release --example generate -- MODEL.gantry "The capital of France is"`.

use gantry_runtime::sample::{Sampler, SamplerOptions};
use gantry_runtime::text::{EncodeOptions, TextStream, Tokenizer};
use gantry_runtime::{Container, Device, Model, ModelOptions, model, vocab};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (path, prompt) = (args.next().ok_or("no container")?, args.next().ok_or("no prompt")?);

    let container = Container::open(path.as_ref())?;
    let tokenizer = Tokenizer::new(&vocab(model::header(&container))?)?;
    let model = Model::load(&container, &Device::cpu(None)?, &ModelOptions::default())?;
    eprintln!("{}", model.load_report());

    let mut session = model.session()?;
    session.prefill(&tokenizer.encode(&prompt, EncodeOptions { add_special: true, parse_special: false }))?;
    let mut sampler = Sampler::new(SamplerOptions::greedy())?;
    let mut stream = TextStream::new(std::iter::empty::<String>());
    print!("{prompt}");
    for _ in 0..64 {
        let token = sampler.sample(session.logits())?;
        if tokenizer.is_eog(token) {
            break;
        }
        sampler.accept(token);
        print!("{}", stream.push(tokenizer.piece(token, false)).text);
        std::io::stdout().flush()?;
        session.decode(token)?;
    }
    println!("{}", stream.finish().text);
    Ok(())
}
