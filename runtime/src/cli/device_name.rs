//! Devices as they are named: `cpu`, `cuda:0,1`, `cuda:0,cuda:1` or `cuda:0,cpu:64GiB`.

use gantry_formats::placement::{CardSpec, parse_cards};

/// A device as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceName {
    Cpu,
    /// Cards by their numbers.
    Cuda(Vec<usize>),
    /// Those, and after them a card in the host's memory, of so many bytes at most.
    Beside(Vec<usize>, Option<u64>),
}

impl std::str::FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text:?} is no device: expected cpu, cuda:0, cuda:0,1 or cuda:0,cpu:64GiB");
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(vec![0])),
            Some(("cuda", list)) => {
                let last = list.rsplit_once(',').filter(|(_, last)| last.split(':').next() == Some("cpu"));
                let (list, host) = last.map_or((list, None), |(list, host)| (list, Some(host)));
                let cards = list
                    .split(',')
                    .map(|n| n.strip_prefix("cuda:").unwrap_or(n).parse().map_err(|_| unknown()));
                let cards: Vec<usize> = cards.collect::<Result<_, _>>()?;
                match cards.iter().enumerate().find(|(i, card)| cards[..*i].contains(card)) {
                    Some((_, card)) => Err(format!("card {card} is given twice")),
                    None => match host.map(parse_cards) {
                        None => Ok(Self::Cuda(cards)),
                        Some(Ok(specs)) => match specs[..] {
                            [CardSpec { host: true, bytes }] => Ok(Self::Beside(cards, bytes)),
                            _ => Err(unknown()),
                        },
                        Some(Err(why)) => Err(why.to_string()),
                    },
                }
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        assert_eq!("cpu".parse(), Ok(DeviceName::Cpu));
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(vec![0])));
        assert_eq!("cuda:1,0".parse(), Ok(DeviceName::Cuda(vec![1, 0])));
        assert_eq!("cuda:0,cuda:2".parse(), Ok(DeviceName::Cuda(vec![0, 2])));
        assert_eq!("cuda:0,1,cpu".parse(), Ok(DeviceName::Beside(vec![0, 1], None)));
        assert_eq!("cuda:0,cpu:1KiB".parse(), Ok(DeviceName::Beside(vec![0], Some(1024))));
        for wrong in [
            "",
            "gpu",
            "cuda:",
            "cuda:0,",
            "cuda:0,0",
            "cuda:0,cuda:0",
            "cuda:-1",
            "cpu:0",
            "cuda:cpu",
            "cuda:cpu,0",
            "cuda:0,cpu,cpu",
            "cuda:0,cpu:",
        ] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }
}
