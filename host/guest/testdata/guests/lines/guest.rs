//! Traps of Rust that no panic tells of.

mod rules {
    #[inline(always)]
    pub fn read(p: *const i32) -> i32 {
        unsafe { p.read_volatile() } // read
    }

    #[inline(never)]
    pub fn check(at: usize) -> i32 {
        read(at as *const i32) // check
    }
}

#[no_mangle]
pub extern "C" fn bad_address() -> i32 {
    let mut n = 0;
    for i in 0..std::hint::black_box(3) {
        n += rules::check(0x7fff_ff00 + i); // bad_address
    }
    n
}

#[no_mangle]
pub extern "C" fn stop() -> i32 {
    if std::hint::black_box(true) {
        std::process::abort(); // stop
    }
    0
}

#[no_mangle]
pub extern "C" fn index() -> i32 {
    let v = vec![1, 2, 3];
    v[std::hint::black_box(7)] // index
}
