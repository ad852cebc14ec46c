//! What the engine is to do, in the order of the target, and the pieces that this is cut into.

use std::sync::mpsc::Receiver;

use super::convert::ElementCast;
use castwise_core::cast::TILE;
use castwise_core::report::CompactReport;

/// One tensor, or a range of its elements.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Where the bytes of the tensor begin in the source.
    pub source: u64,
    /// Where they go in the target.
    pub target: u64,
    /// The first element of the range, at a whole tile; a byte, if the elements are copied unchanged.
    pub first: u64,
    /// Elements of the range, or bytes.
    pub count: u64,
    /// How they are cast; `None`: they are copied.
    pub cast: Option<ElementCast>,
}

impl Job {
    fn source_bytes(&self, count: u64) -> u64 {
        self.cast.map_or(count, |cast| cast.source.bytes(count))
    }

    fn target_bytes(&self, count: u64) -> u64 {
        self.cast.map_or(count, |cast| cast.target.bytes(count))
    }

    /// The bytes of the range in the source.
    pub(super) fn source_len(&self) -> usize {
        self.source_bytes(self.count) as usize
    }

    /// The bytes of the range in the target.
    pub(super) fn target_len(&self) -> usize {
        self.target_bytes(self.count) as usize
    }

    /// The bytes of an element where it is largest: in the file or while it is cast.
    fn widest(&self) -> u64 {
        self.cast.map_or(1, |cast| cast.widest())
    }

    /// Elements per piece of so many bytes: whole tiles.
    fn piece(&self, bytes: u64) -> u64 {
        let tile = TILE as u64;
        (bytes / self.widest() / tile).max(1) * tile
    }

    /// Where the range begins in the source and in the target.
    pub(super) fn begins(&self) -> (u64, u64) {
        (self.source + self.source_bytes(self.first), self.target + self.target_bytes(self.first))
    }

    /// Where the range ends in the source and in the target.
    fn ends(&self) -> (u64, u64) {
        let end = self.first + self.count;
        (self.source + self.source_bytes(end), self.target + self.target_bytes(end))
    }

    /// Takes the first piece of so many bytes off the range.
    fn take_piece(&mut self, bytes: u64) -> Self {
        let count = self.piece(bytes).min(self.count);
        let piece = Self { count, ..*self };
        self.first += count;
        self.count -= count;
        piece
    }

    /// The report of a cast without elements, which has no piece.
    pub(super) fn report_without_pieces(&self) -> Option<Box<CompactReport>> {
        let is_reported = self.cast.is_some_and(|cast| cast.settings.report);
        (is_reported && self.count == 0).then(Box::default)
    }
}

/// Pieces that are read at once and written at once: one, or small ones that lie behind one another in both files.
struct Group {
    room: u64,
    ends: Option<(u64, u64)>,
}

impl Group {
    /// Makes an empty group with room for so many bytes.
    fn new(room: u64) -> Self {
        Self { room, ends: None }
    }

    /// Takes a piece in if it belongs there, the first one in any case; returns whether it did.
    fn admits(&mut self, piece: &Job) -> bool {
        let bytes = piece.count * piece.widest();
        let belongs = self.ends.is_none_or(|ends| bytes <= self.room && ends == piece.begins());
        if belongs {
            self.room = self.room.saturating_sub(bytes);
            self.ends = Some(piece.ends());
        }
        belongs
    }
}

/// Counts the groups that jobs are cut into.
pub(super) struct GroupCount {
    pub(super) count: usize,
    last: Group,
    piece_bytes: u64,
}

impl GroupCount {
    pub(super) fn new(piece_bytes: u64) -> Self {
        Self { count: 0, last: Group { room: 0, ends: Some((0, 0)) }, piece_bytes }
    }

    /// Counts the groups of a job too, up to as many in all as are `enough`.
    pub(super) fn add(&mut self, mut job: Job, enough: usize) {
        while job.count > 0 && self.count < enough {
            let piece = job.take_piece(self.piece_bytes);
            if !self.last.admits(&piece) {
                self.last = Group::new(self.piece_bytes);
                self.last.admits(&piece);
                self.count += 1;
            }
        }
    }
}

/// Jobs that arrive while pieces are cut from the first of them.
pub(super) struct Queue {
    jobs: Receiver<(usize, Job)>,
    piece_bytes: u64,
    /// The position of the job that is being cut, and the range that is left of it.
    rest: Option<(usize, Job)>,
}

impl Queue {
    pub(super) fn new(jobs: Receiver<(usize, Job)>, piece_bytes: u64) -> Self {
        Self { jobs, piece_bytes, rest: None }
    }

    /// Cuts the pieces of the next group, each with the position of its job. Waits until there is one; there is none after
    /// the last.
    pub(super) fn next_pieces(&mut self, pieces: &mut Vec<(usize, Job)>) {
        pieces.clear();
        let mut group = Group::new(self.piece_bytes);
        loop {
            match &mut self.rest {
                Some((index, rest)) if rest.count > 0 => {
                    let mut after = *rest;
                    let piece = after.take_piece(self.piece_bytes);
                    if !group.admits(&piece) {
                        return;
                    }
                    pieces.push((*index, piece));
                    *rest = after;
                }
                _ if pieces.is_empty() => {
                    self.rest = self.jobs.recv().ok();
                    if self.rest.is_none() {
                        return;
                    }
                }
                _ => match self.jobs.try_recv() {
                    Ok(job) => self.rest = Some(job),
                    Err(_) => return,
                },
            }
        }
    }
}
