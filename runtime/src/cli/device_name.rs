//! Devices as they are named: `cpu`, `cuda:0,1`, `hip:0,hip:1` or `cuda:0,cpu:64GiB`.

use gantry_formats::placement::{CardSpec, parse_cards};
use gantry_runtime::backend::device::{CardName, Family};

/// A device as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceName {
    Cpu,
    Cards(Vec<CardName>),
    /// Those, and after them a card in the host's memory, of so many bytes at most.
    Beside(Vec<CardName>, Option<u64>),
}

impl std::str::FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "{text:?} is no device: expected cpu, cuda:0, cuda:0,1 or cuda:0,cpu:64GiB; hip and level-zero as cuda"
            )
        };
        if text == "cpu" {
            return Ok(Self::Cpu);
        }
        if let Ok(family) = text.parse() {
            return Ok(Self::Cards(vec![CardName { family, card: 0 }]));
        }
        let last = text.rsplit_once(',').filter(|(_, last)| last.split(':').next() == Some("cpu"));
        let (list, host) = last.map_or((text, None), |(list, host)| (list, Some(host)));
        let mut cards: Vec<CardName> = Vec::new();
        // A number alone is a card of the family before it.
        let mut of: Option<Family> = None;
        for name in list.split(',') {
            let number = match name.split_once(':') {
                None => name,
                Some((family, number)) => {
                    of = Some(family.parse().map_err(|()| unknown())?);
                    number
                }
            };
            let family = of.ok_or_else(unknown)?;
            let card = CardName { family, card: number.parse().map_err(|_| unknown())? };
            if cards.contains(&card) {
                return Err(format!("{card} is given twice"));
            }
            cards.push(card);
        }
        match host.map(parse_cards) {
            None => Ok(Self::Cards(cards)),
            Some(Ok(specs)) => match specs[..] {
                [CardSpec { host: true, bytes }] => Ok(Self::Beside(cards, bytes)),
                _ => Err(unknown()),
            },
            Some(Err(why)) => Err(why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cards(family: Family, numbers: &[usize]) -> Vec<CardName> {
        numbers.iter().map(|card| CardName { family, card: *card }).collect()
    }

    #[test]
    fn devices_have_names() {
        let cuda = |numbers: &[usize]| cards(Family::Cuda, numbers);
        assert_eq!("cpu".parse(), Ok(DeviceName::Cpu));
        assert_eq!("cuda".parse(), Ok(DeviceName::Cards(cuda(&[0]))));
        assert_eq!("cuda:1,0".parse(), Ok(DeviceName::Cards(cuda(&[1, 0]))));
        assert_eq!("cuda:0,cuda:2".parse(), Ok(DeviceName::Cards(cuda(&[0, 2]))));
        assert_eq!("hip".parse(), Ok(DeviceName::Cards(cards(Family::Hip, &[0]))));
        assert_eq!("level-zero:1,0".parse(), Ok(DeviceName::Cards(cards(Family::LevelZero, &[1, 0]))));
        assert_eq!("cuda:0,1,cpu".parse(), Ok(DeviceName::Beside(cuda(&[0, 1]), None)));
        assert_eq!("cuda:0,cpu:1KiB".parse(), Ok(DeviceName::Beside(cuda(&[0]), Some(1024))));
        // Named well; whether they run together is told when they are opened.
        let both = [cuda(&[0]), cards(Family::Hip, &[0])].concat();
        assert_eq!("cuda:0,hip:0".parse(), Ok(DeviceName::Cards(both)));
        for wrong in [
            "",
            "gpu",
            "gpu:0",
            "0",
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
            "level_zero:0",
        ] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }
}
