//! What differs, for people and for programs.

use super::metadata::Change;
use super::tensors::{Compared, Side};
use crate::output::json_float;
use crate::table::{Align, Table};
use crate::units;
use gantry_formats::message::wrap;
use serde_json::{Value, json};

/// Tensors that are listed unless all are asked for.
const SHOWN: usize = 24;

/// Everything that was compared.
#[derive(Debug)]
pub(super) struct Report {
    names: [String; 2],
    metadata: Vec<Change>,
    packing: Vec<Change>,
    tensors: Vec<Compared>,
    values: bool,
}

impl Report {
    pub(super) fn new(
        names: [String; 2],
        metadata: Vec<Change>,
        packing: Vec<Change>,
        tensors: Vec<Compared>,
        values: bool,
    ) -> Self {
        Self { names, metadata, packing, tensors, values }
    }

    /// Whether both are the same model.
    pub(super) fn is_same(&self) -> bool {
        self.metadata.is_empty() && self.tensors.iter().all(Compared::is_same)
    }

    fn same_tensors(&self) -> u64 {
        self.tensors.iter().filter(|t| t.is_same()).count() as u64
    }

    /// Tensors that are the same and yet lie in another layout.
    fn repacked(&self) -> u64 {
        let moved =
            |t: &&Compared| t.is_same() && t.a.as_ref().map(|s| &s.stored) != t.b.as_ref().map(|s| &s.stored);
        self.tensors.iter().filter(moved).count() as u64
    }

    /// For people.
    pub(super) fn text(&self, full: bool) -> String {
        let mut out = format!("a  {}\nb  {}\n", self.names[0], self.names[1]);
        for (title, changes) in [("packed differently", &self.packing), ("metadata", &self.metadata)] {
            if !changes.is_empty() {
                out += &format!("\n{title}\n");
                changes.iter().for_each(|c| out += &change(c));
            }
        }
        let mut differing: Vec<&Compared> = self.tensors.iter().filter(|t| !t.is_same()).collect();
        let count = differing.len();
        if !full && count > SHOWN {
            // What only one side has first, then by error.
            let error = |t: &Compared| t.values.as_ref().map_or(f64::INFINITY, |d| d.max);
            differing.sort_by(|a, b| error(b).total_cmp(&error(a)));
            differing.truncate(SHOWN);
        }
        if count > 0 {
            out.push('\n');
            out += &self.tensor_table(&differing);
        }
        if count > differing.len() {
            out += &format!("… and {} that differ less; --full lists all\n", count - differing.len());
        }
        out.push('\n');
        let mut line = format!("{} the same", units::plural(self.same_tensors(), "tensor"));
        if self.repacked() > 0 {
            line += &format!(" ({} of them in another layout)", units::count(self.repacked()));
        }
        line += &format!(", {} differ", units::count(count as u64));
        line += &format!("; {} differ", units::plural(self.metadata.len() as u64, "key"));
        if !self.values {
            line += "; values were not compared";
        }
        out += &wrap(&line, 0);
        out + if self.is_same() { "\nthe same model\n" } else { "\nDIFFERENT\n" }
    }

    fn tensor_table(&self, tensors: &[&Compared]) -> String {
        let columns = [
            ("tensor", Align::Left),
            ("a", Align::Left),
            ("b", Align::Left),
            ("max error", Align::Right),
            ("rms", Align::Right),
            ("differing", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for t in tensors {
            let shapes = t.a.as_ref().map(|s| &s.dims) != t.b.as_ref().map(|s| &s.dims);
            let side = |s: &Option<Side>| match s {
                None => "-".to_string(),
                Some(s) if shapes && t.a.is_some() && t.b.is_some() => format!("{} {:?}", s.stored, s.dims),
                Some(s) => s.stored.clone(),
            };
            let [max, rms, differing] = match &t.values {
                None => [String::new(), String::new(), String::new()],
                Some(d) => {
                    let share = units::percent(d.differing, d.count);
                    [units::float(d.max), units::float(d.rms()), format!("{share} %")]
                }
            };
            table.row([t.name.clone(), side(&t.a), side(&t.b), max, rms, differing]);
        }
        table.render()
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let side = |s: &Side| json!({ "type": s.ty, "stored_as": s.stored, "dims": s.dims });
        let tensor = |t: &Compared| {
            let status = match (&t.a, &t.b) {
                (Some(_), None) => "removed",
                (None, _) => "added",
                _ => "changed",
            };
            json!({
                "name": t.name, "status": status, "a": t.a.as_ref().map(side), "b": t.b.as_ref().map(side),
                "max_error": t.values.as_ref().map(|d| json_float(d.max)),
                "rms": t.values.as_ref().map(|d| json_float(d.rms())),
                "differing": t.values.as_ref().map(|d| d.differing),
                "count": t.values.as_ref().map(|d| d.count),
            })
        };
        let differing = self.tensors.iter().filter(|t| !t.is_same()).map(tensor);
        json!({
            "a": self.names[0], "b": self.names[1], "same": self.is_same(), "values_compared": self.values,
            "metadata": self.metadata, "packing": self.packing, "same_tensors": self.same_tensors(),
            "repacked_tensors": self.repacked(), "tensors": differing.collect::<Vec<_>>(),
        })
    }
}

fn change(c: &Change) -> String {
    let line = match (&c.a, &c.b) {
        (Some(a), None) => format!("  - {} {a}", c.key),
        (None, Some(b)) => format!("  + {} {b}", c.key),
        (a, b) => {
            let (a, b) = (a.as_deref().unwrap_or_default(), b.as_deref().unwrap_or_default());
            format!("  ~ {} {a} -> {b}", c.key)
        }
    };
    wrap(&line, 6) + "\n"
}
