//! Which expert lies in which slot.
//!
//! Slots below `first` are for passing through and for what is read ahead; the others keep experts from step to step.
//! There are more as memory comes ([`Slots::open`]), and fewer where it is short ([`Slots::close`]).

use crate::scores::Scores;
use martlet_device::NO_SLOT;
use martlet_io::Slot;
use std::sync::Arc;

/// (layer, expert)
pub type Name = (u32, u32);

pub struct Slots {
    slots: Vec<Place>,
    /// Slot of expert e of layer i: `places[i][e]`.
    places: Vec<Vec<u32>>,
    first: usize,
}

struct Place {
    /// `None` while it is being read into.
    buffer: Option<Arc<Slot>>,
    holds: Option<Name>,
}

/// An expert that has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    pub expert: u32,
    /// Where it will stay; `None`: it passes through the ring.
    pub slot: Option<u32>,
}

/// What a layer's choices need.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// (expert, slot) of those that are there.
    pub hits: Vec<(u32, u32)>,
    /// In order of experts, which is the order in the file.
    pub misses: Vec<Miss>,
    /// Slots whose experts make room, and must be emptied.
    pub emptied: Vec<u32>,
}

impl Slots {
    /// `passing`: the first slots, which keep nothing. `experts[i]`: how many layer i has.
    pub fn new(passing: Vec<Slot>, experts: &[usize]) -> Slots {
        let places = experts.iter().map(|n| vec![NO_SLOT; *n]).collect();
        let mut slots = Slots { slots: Vec::new(), places, first: passing.len() };
        passing.into_iter().for_each(|buffer| slots.open(buffer));
        slots
    }

    /// Slots that keep experts, or could.
    pub fn kept(&self) -> usize {
        self.slots.len() - self.first
    }

    /// Experts that are kept.
    pub fn held(&self) -> usize {
        self.slots[self.first..].iter().filter(|s| s.holds.is_some()).count()
    }

    /// Finds the chosen experts of a layer, and room for those that are not there: a missing expert stays if it is worth
    /// more than the least of those that this layer does not need right now.
    pub fn need(&mut self, layer: u32, chosen: &[u32], scores: &Scores) -> Need {
        let mut need = Need::default();
        let places = &self.places[layer as usize];
        for &expert in chosen {
            match places[expert as usize] {
                NO_SLOT => need.misses.push(Miss { expert, slot: None }),
                slot => need.hits.push((expert, slot)),
            }
        }
        if need.misses.is_empty() {
            return need;
        }
        let mut room: Vec<(f64, u32)> = Vec::new();
        for (slot, place) in self.slots.iter().enumerate().skip(self.first) {
            match place.holds {
                None => room.push((f64::NEG_INFINITY, slot as u32)),
                Some((l, e)) if l == layer && chosen.binary_search(&e).is_ok() => {}
                Some((l, e)) => room.push((scores.score(l, e), slot as u32)),
            }
        }
        let worth = |m: &Miss| scores.score(layer, m.expert);
        let count = need.misses.len().min(room.len());
        if count > 0 {
            room.select_nth_unstable_by(count - 1, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
        room.truncate(count);
        room.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut order: Vec<usize> = (0..need.misses.len()).collect();
        order.sort_by(|a, b| worth(&need.misses[*b]).total_cmp(&worth(&need.misses[*a])));
        for (i, (least, slot)) in order.into_iter().zip(room) {
            if worth(&need.misses[i]) <= least {
                break;
            }
            need.misses[i].slot = Some(slot);
            if self.forget(slot) {
                need.emptied.push(slot);
            }
        }
        need
    }

    /// Whether an expert lies in a slot.
    pub fn has(&self, (layer, expert): Name) -> bool {
        self.places[layer as usize][expert as usize] != NO_SLOT
    }

    /// Takes a slot's buffer, to be read into. The device must have let go of it: `None` where it has not.
    pub fn take(&mut self, slot: u32) -> Option<Slot> {
        self.forget(slot);
        let buffer = self.slots[slot as usize].buffer.take()?;
        Arc::try_unwrap(buffer).map_err(|kept| self.slots[slot as usize].buffer = Some(kept)).ok()
    }

    /// Puts it back, with what it holds.
    pub fn put(&mut self, slot: u32, buffer: Slot, holds: Option<Name>) -> Arc<Slot> {
        let buffer = Arc::new(buffer);
        self.slots[slot as usize] = Place { buffer: Some(buffer.clone()), holds };
        if let Some((layer, expert)) = holds {
            self.places[layer as usize][expert as usize] = slot;
        }
        buffer
    }

    /// The slot holds nothing any more. Whether it did.
    pub fn forget(&mut self, slot: u32) -> bool {
        let held = self.slots[slot as usize].holds.take();
        if let Some((layer, expert)) = held {
            self.places[layer as usize][expert as usize] = NO_SLOT;
        }
        held.is_some()
    }

    /// One more slot.
    pub fn open(&mut self, buffer: Slot) {
        self.slots.push(Place { buffer: Some(Arc::new(buffer)), holds: None });
    }

    /// The number of the slot that [`Slots::close`] takes; `None` where none keeps experts.
    pub fn last(&self) -> Option<u32> {
        (self.kept() > 0).then(|| self.slots.len() as u32 - 1)
    }

    /// Takes the last slot, of which the device must have let go: `None` where it has not.
    pub fn close(&mut self) -> Option<Slot> {
        let buffer = self.take(self.last()?)?;
        self.slots.pop();
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_device::Routes;

    fn slots(ring: usize, kept: usize, experts: &[usize]) -> Slots {
        let mut buffers = Slot::many(ring + kept, 4096).unwrap();
        let rest = buffers.split_off(ring);
        let mut slots = Slots::new(buffers, experts);
        rest.into_iter().for_each(|b| slots.open(b));
        slots
    }

    fn fill(slots: &mut Slots, need: &Need, layer: u32) {
        for miss in &need.misses {
            if let Some(slot) = miss.slot {
                let buffer = slots.take(slot).unwrap();
                slots.put(slot, buffer, Some((layer, miss.expert)));
            }
        }
    }

    fn choose(slots: &mut Slots, scores: &mut Scores, layer: u32, experts: &[u32]) -> Need {
        let routes = Routes { chosen: experts.len(), experts: experts.to_vec(), weights: vec![0.0; experts.len()] };
        let chosen = scores.note(layer as usize, &routes);
        let need = slots.need(layer, &chosen, scores);
        fill(slots, &need, layer);
        need
    }

    #[test]
    fn the_least_worth_makes_room_and_what_is_needed_stays() {
        let experts = [8, 8];
        let mut scores = Scores::new(&experts, 2);
        let mut slots = slots(2, 4, &experts);
        let first = choose(&mut slots, &mut scores, 0, &[5, 1, 3]);
        assert_eq!(first.misses.iter().map(|m| m.expert).collect::<Vec<_>>(), [1, 3, 5], "in file order");
        assert!(first.misses.iter().all(|m| m.slot.is_some_and(|s| s >= 2)) && first.emptied.is_empty());
        let again = choose(&mut slots, &mut scores, 0, &[1, 3, 5]);
        assert_eq!((again.hits.len(), again.misses.len(), slots.held()), (3, 0, 3));
        // One is free; the others of layer 0 were chosen twice, and are worth more than what comes once.
        let other = choose(&mut slots, &mut scores, 1, &[0, 7]);
        assert_eq!(other.misses.iter().filter(|m| m.slot.is_some()).count(), 1);
        // Needed experts never make room for each other, whatever they are worth.
        for _ in 0..50 {
            let need = choose(&mut slots, &mut scores, 1, &[0, 1, 2, 3, 4, 5]);
            let kept: Vec<u32> = need.hits.iter().map(|h| h.1).collect();
            assert!(need.emptied.iter().all(|s| !kept.contains(s)));
        }
        assert_eq!(choose(&mut slots, &mut scores, 1, &[0, 1, 2, 3, 4, 5]).hits.len(), 4, "all kept slots are theirs");
    }

    #[test]
    fn a_slot_that_is_in_use_is_not_given_away_and_closed_ones_hold_nothing() {
        let experts = [8];
        let mut scores = Scores::new(&experts, 1);
        let mut slots = slots(1, 4, &experts);
        let mut buffer = slots.take(4).unwrap();
        buffer.fill(9);
        let kept = slots.put(4, buffer, Some((0, 2)));
        assert!(slots.take(4).is_none(), "somebody looks at it");
        assert_eq!(kept[0], 9);
        drop(kept);
        let closed: Vec<Slot> = (0..3).map(|_| slots.close().unwrap()).collect();
        let need = choose(&mut slots, &mut scores, 0, &[0, 1, 2]);
        assert_eq!(need.misses.iter().filter_map(|m| m.slot).collect::<Vec<_>>(), [1]);
        slots.forget(1);
        assert!(slots.close().is_some() && slots.close().is_none(), "the ring stays");
        closed.into_iter().for_each(|b| slots.open(b));
        assert_eq!((slots.kept(), slots.last()), (3, Some(3)));
        assert_eq!(choose(&mut slots, &mut scores, 0, &[2]).misses[0].slot, Some(1), "and holds nothing of before");
    }
}
