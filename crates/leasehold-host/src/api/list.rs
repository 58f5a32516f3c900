//! Lists: filters, order, and pages. Pure.
//!
//! Pages are by key, not by number: a cursor names the last entry seen, so entries that come or go meanwhile move nothing.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::error::{ApiError, ApiResult};
use crate::wall::Wall;

/// Entries of a page, if the request does not say; also the most it may say.
const PAGE: usize = 100;

/// Newest or oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    NewestFirst,
    OldestFirst,
}

/// What a list request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

/// A position in a list: time, then id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) at: Wall,
    pub(crate) id: String,
}

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes())
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        Self { pairs }
    }

    /// The first non-empty value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.pairs.iter().filter(move |(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// Repeated, or comma-separated.
    pub(crate) fn states(&self) -> ApiResult<Option<Vec<&str>>> {
        let states: Vec<&str> =
            self.all("state").chain(self.all("state[]")).flat_map(|value| value.split(',')).collect();
        if let Some(unknown) = states.iter().find(|state| !["running", "paused"].contains(state)) {
            return Err(ApiError::bad(format!("state: {unknown:?} is not one of running, paused")));
        }
        Ok((!states.is_empty()).then_some(states))
    }

    pub(crate) fn limit(&self) -> ApiResult<usize> {
        let Some(text) = self.get("limit") else { return Ok(PAGE) };
        match text.parse() {
            Ok(limit) if (1..=PAGE).contains(&limit) => Ok(limit),
            _ => Err(ApiError::bad(format!("limit: {text:?} is not a number from 1 to {PAGE}"))),
        }
    }

    pub(crate) fn order(&self) -> ApiResult<Order> {
        match self.get("order") {
            None | Some("desc") => Ok(Order::NewestFirst),
            Some("asc") => Ok(Order::OldestFirst),
            Some(other) => Err(ApiError::bad(format!("order: {other:?} is not one of asc, desc"))),
        }
    }

    pub(crate) fn started_after(&self) -> ApiResult<Option<Wall>> {
        self.get("startedAfter")
            .map(|text| {
                Wall::parse(text).ok_or_else(|| ApiError::bad(format!("startedAfter: {text:?} is not RFC 3339")))
            })
            .transpose()
    }

    pub(crate) fn after(&self) -> ApiResult<Option<Key>> {
        let Some(token) = self.get("nextToken") else { return Ok(None) };
        Key::parse(token).map(Some).ok_or_else(|| ApiError::bad("nextToken: not one that this host gave out"))
    }

    /// The metadata that must all be there. Clients encode it three times: each key and value, then the pairs as a form, then
    /// the whole as one value (which [`Self::parse`] has undone).
    pub(crate) fn metadata(&self) -> Vec<(String, String)> {
        let Some(text) = self.get("metadata") else { return Vec::new() };
        unescape(text)
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (unescape(key), unescape(value)))
            .collect()
    }
}

fn unescape(text: &str) -> String {
    percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

impl Key {
    /// The opaque text that names this position.
    pub(crate) fn token(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}__{}", self.at.micros(), self.id))
    }

    fn parse(token: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?).ok()?;
        let (at, id) = text.split_once("__")?;
        Some(Self { at: Wall::from_micros(at.parse().ok()?), id: id.to_owned() })
    }

    fn compare(&self, other: &Self, order: Order) -> std::cmp::Ordering {
        let by_time = match order {
            Order::NewestFirst => other.at.cmp(&self.at),
            Order::OldestFirst => self.at.cmp(&other.at),
        };
        by_time.then_with(|| self.id.cmp(&other.id))
    }
}

/// Sorts, drops what `after` and all before it, and cuts a page. The second value is where the next page begins.
pub(crate) fn page<T>(
    mut entries: Vec<(Key, T)>,
    order: Order,
    after: Option<&Key>,
    limit: usize,
) -> (Vec<T>, Option<String>) {
    entries.sort_by(|(a, _), (b, _)| a.compare(b, order));
    entries.retain(|(key, _)| after.is_none_or(|after| after.compare(key, order).is_lt()));
    let next = (entries.len() > limit).then(|| entries[limit - 1].0.token());
    entries.truncate(limit);
    (entries.into_iter().map(|(_, entry)| entry).collect(), next)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_metadata_filter_is_decoded_three_times() {
        let query = Query::parse(Some("metadata=a%252520b%3Dc%252526d"));
        assert_eq!(query.metadata(), [("a b".to_owned(), "c&d".to_owned())]);
        assert!(Query::parse(None).metadata().is_empty());
    }

    #[test]
    fn wrong_parameters_are_refused() {
        for text in ["limit=0", "limit=101", "limit=x", "limit=-1"] {
            assert!(Query::parse(Some(text)).limit().is_err(), "{text}");
        }
        assert!(Query::parse(Some("state=dead")).states().is_err());
        assert!(Query::parse(Some("nextToken=..")).after().is_err());
        assert!(Query::parse(Some("order=up")).order().is_err());
        assert!(Query::parse(Some("startedAfter=now")).started_after().is_err());
        assert_eq!(
            Query::parse(Some("state=running%2Cpaused")).states().expect("right"),
            Some(vec!["running", "paused"])
        );
    }

    proptest! {
        #[test]
        fn pages_together_are_the_whole_list(times in prop::collection::vec(0_i64..6, 0..40), limit in 1_usize..7, up in any::<bool>()) {
            let order = if up { Order::OldestFirst } else { Order::NewestFirst };
            let entries: Vec<_> = times.iter().enumerate()
                .map(|(n, &at)| (Key { at: Wall::from_micros(at), id: format!("i{n:03}") }, n)).collect();
            let mut seen = Vec::new();
            let mut after = None;
            loop {
                let (page, next) = page(entries.clone(), order, after.as_ref(), limit);
                prop_assert!(page.len() <= limit);
                seen.extend(page);
                let Some(next) = next else { break };
                after = Some(Key::parse(&next).expect("our own token"));
            }
            let mut all = entries.clone();
            all.sort_by(|(a, _), (b, _)| a.compare(b, order));
            let all: Vec<_> = all.into_iter().map(|(_, n)| n).collect();
            prop_assert_eq!(seen, all);
        }
    }
}
