//! A bump allocator for short-lived programs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A global allocator for programs that run for about a millisecond. It allocates from one static block and reuses only
/// the allocation that it made last. When the block is full, allocations come from the system allocator.
///
/// musl's allocator maps and unmaps pages all the time, which took a quarter of a plugin's run time.
#[derive(Debug)]
pub struct Arena {
    /// The offset of the next allocation.
    used: AtomicUsize,
    /// The highest offset ever allocated. Beyond it the block is untouched and all zero.
    touched: AtomicUsize,
}

const ARENA_SIZE: usize = 1 << 20;

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; ARENA_SIZE]>);

// SAFETY: the block is accessed only through allocations of `Arena`, each with one owner.
unsafe impl Sync for Block {}

static BLOCK: Block = Block(UnsafeCell::new([0; ARENA_SIZE]));

impl Arena {
    /// For `#[global_allocator]`. A program may have only one.
    pub const fn new() -> Arena {
        Arena { used: AtomicUsize::new(0), touched: AtomicUsize::new(0) }
    }

    /// The offset of a pointer in the block, if it points into the block.
    fn offset(pointer: *const u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(BLOCK.0.get() as usize);
        (offset < ARENA_SIZE).then_some(offset)
    }

    fn set(&self, from: usize, to: usize) -> bool {
        // AcqRel: the next owner of the memory sees all writes of the previous one, which may be another thread.
        self.used.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Allocates from the block. Also returns how many bytes from the start may have been written before.
    fn allocate(&self, layout: Layout) -> Option<(*mut u8, usize)> {
        loop {
            let used = self.used.load(Ordering::Relaxed);
            let start = used.next_multiple_of(layout.align());
            let end = start.saturating_add(layout.size());
            if end > ARENA_SIZE || layout.align() > 4096 {
                return None;
            }
            if self.set(used, end) {
                let touched = self.touched.fetch_max(end, Ordering::Relaxed);
                let pointer = BLOCK.0.get().cast::<u8>().wrapping_add(start);
                return Some((pointer, touched.saturating_sub(start).min(layout.size())));
            }
        }
    }
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

// SAFETY: the thread that moves `used` over a range is its only owner. The range is aligned and has the requested size.
// It is allocated again only after `dealloc` of the last allocation. All other memory belongs to the system allocator.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout) {
            Some((pointer, _)) => pointer,
            // SAFETY: the caller's guarantees about the layout are those that the system allocator needs.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout) {
            Some((pointer, written)) => {
                // SAFETY: the allocation has at least `written` bytes. Untouched pages are zero already; writing to
                // them would fault them in, and most pages of receive buffers are never used.
                unsafe { pointer.write_bytes(0, written) };
                pointer
            }
            // SAFETY: the caller's guarantees about the layout are those that the system allocator needs.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match Arena::offset(pointer) {
            Some(start) => drop(self.set(start + layout.size(), start)),
            // SAFETY: it is outside the block, so the system allocated it with this layout.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match Arena::offset(pointer) {
            // The last allocation grows and shrinks in place.
            Some(start) if start + size <= ARENA_SIZE && self.set(start + layout.size(), start + size) => {
                self.touched.fetch_max(start + size, Ordering::Relaxed);
                pointer
            }
            Some(_) if size <= layout.size() => pointer,
            Some(_) => {
                // SAFETY: the caller guarantees that the size is not zero and does not overflow with this alignment;
                // the old and the new allocation do not overlap, and the shorter length is copied.
                unsafe {
                    let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                    if !new.is_null() {
                        std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size));
                    }
                    new
                }
            }
            // SAFETY: it is outside the block, so the system allocated it with this layout.
            None => unsafe { System.realloc(pointer, layout, size) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_aligned_and_keep_their_bytes() {
        let arena = Arena::new();
        let small = Layout::from_size_align(3, 1).unwrap();
        let large = Layout::from_size_align(ARENA_SIZE, 8).unwrap();
        // SAFETY: allocations are written inside their bounds and freed with their layouts.
        unsafe {
            let a = arena.alloc(small);
            a.copy_from(b"abc".as_ptr(), 3);
            let b = arena.alloc(Layout::from_size_align(64, 64).unwrap());
            assert_eq!(b as usize % 64, 0);
            let grown = arena.realloc(a, small, 300);
            assert_ne!(grown, a);
            assert_eq!(std::slice::from_raw_parts(grown, 3), b"abc");
            let in_place = arena.realloc(grown, Layout::from_size_align(300, 1).unwrap(), 400);
            assert_eq!(in_place, grown);
            arena.dealloc(in_place, Layout::from_size_align(400, 1).unwrap());
            assert_eq!(arena.alloc(small), grown);
            let again = arena.alloc(Layout::from_size_align(100, 1).unwrap());
            again.write_bytes(7, 100);
            arena.dealloc(again, Layout::from_size_align(100, 1).unwrap());
            let zeroed = arena.alloc_zeroed(Layout::from_size_align(1000, 1).unwrap());
            assert!(std::slice::from_raw_parts(zeroed, 1000).iter().all(|byte| *byte == 0));
            let outside = arena.alloc(large);
            assert!(Arena::offset(outside).is_none());
            arena.dealloc(outside, large);
        }
    }
}
