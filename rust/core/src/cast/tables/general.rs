//! What a plan makes of codes in memory, for those who look it up later.

use crate::cast::plan::Plan;
use crate::cast::stages::stage::Span;
use crate::cast::tile::{TILE, Tile};

/// The results of dense source elements, by a plan that neither scales nor draws.
pub(in crate::cast) fn results(plan: &Plan, codes: &[u8]) -> Vec<u8> {
    let count = codes.len() / plan.source_size;
    let mut results = vec![0; count * plan.target_size];
    let (mut lanes, mut flags) = (Tile::<u64>::default(), Tile::<u8>::default());
    let lanes = lanes.0.as_mut_ptr().cast::<u8>();
    for start in (0..count).step_by(TILE) {
        let span = Span { count: TILE.min(count - start), flags: flags.0.as_mut_ptr(), ..Span::EMPTY };
        // SAFETY: elements from `start` on are in both buffers, and a tile has room for their lanes and flags; there
        // are no scales or draws.
        unsafe {
            let mut source = codes.as_ptr().add(start * plan.source_size);
            let target = results.as_mut_ptr().add(start * plan.target_size);
            if let Some(decode) = &plan.decode {
                let target = if plan.encode.is_some() { lanes } else { target };
                decode.run(plan.level, Span { source, target, ..span });
                source = target;
            }
            match &plan.encode {
                Some(encode) => encode.run(plan.level, Span { source, target, ..span }),
                None if plan.decode.is_none() => {
                    source.copy_to_nonoverlapping(target, span.count * plan.source_size);
                }
                None => {}
            }
        }
    }
    results
}
