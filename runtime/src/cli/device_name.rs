//! Devices as they are named: `cpu`, `cuda:0,1` or `cuda:0,cuda:1`.

/// A device as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceName {
    Cpu,
    /// Cards by their numbers.
    Cuda(Vec<usize>),
}

impl std::str::FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text:?} is no device: expected cpu, cuda:0 or cuda:0,1");
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(vec![0])),
            Some(("cuda", list)) => {
                let cards = list
                    .split(',')
                    .map(|n| n.strip_prefix("cuda:").unwrap_or(n).parse().map_err(|_| unknown()));
                let cards: Vec<usize> = cards.collect::<Result<_, _>>()?;
                match cards.iter().enumerate().find(|(i, card)| cards[..*i].contains(card)) {
                    Some((_, card)) => Err(format!("card {card} is given twice")),
                    None => Ok(Self::Cuda(cards)),
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
        for wrong in
            ["", "gpu", "cuda:", "cuda:0,", "cuda:0,0", "cuda:0,cuda:0", "cuda:-1", "cpu:0", "cuda:0,cpu:0"]
        {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }
}
