//! Makes the transaction ids of requests. They cannot be guessed without having seen one.

use sha2::{Digest, Sha256};

use super::Transaction;

/// Derives transaction ids from a seed.
pub(in super::super) struct Ids {
    seed: [u8; 32],
    count: u64,
}

impl Ids {
    pub(in super::super) fn new(seed: [u8; 32]) -> Self {
        Self { seed, count: 0 }
    }

    pub(in super::super) fn next(&mut self) -> Transaction {
        self.count += 1;
        // Hashed, because responses are matched by these ids alone until the relay's key is known.
        let digest = Sha256::new().chain_update(self.seed).chain_update(self.count.to_be_bytes()).finalize();
        let mut id = Transaction::default();
        let length = id.len();
        id.copy_from_slice(&digest[..length]);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_ids_are_unique_per_seed() {
        let (mut one, mut two) = (Ids::new([1; 32]), Ids::new([2; 32]));
        let ids: std::collections::HashSet<_> = (0..100).flat_map(|_| [one.next(), two.next()]).collect();
        assert_eq!(ids.len(), 200);
        assert!(ids.contains(&Ids::new([1; 32]).next()));
    }
}
