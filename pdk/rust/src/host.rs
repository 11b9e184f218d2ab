//! The host's functions, as bytes and text. Natively they are fake's.

#[cfg(target_arch = "wasm32")]
pub use wasm::*;

#[cfg(not(target_arch = "wasm32"))]
pub use crate::fake::functions::*;

#[cfg(target_arch = "wasm32")]
mod wasm {
    use crate::Level;

    // The Extism kernel keeps blocks of memory of its own, named by offsets; 0
    // is no block.
    #[link(wasm_import_module = "extism:host/env")]
    extern "C" {
        fn input_length() -> u64;
        #[cfg(feature = "portable")]
        fn input_load_u8(at: u64) -> u32;
        #[cfg(feature = "portable")]
        fn input_load_u64(at: u64) -> u64;
        #[cfg(feature = "portable")]
        fn output_set(at: u64, n: u64);
        fn alloc(n: u64) -> u64;
        fn free(block: u64);
        fn length(block: u64) -> u64;
        fn load_u8(at: u64) -> u32;
        fn load_u64(at: u64) -> u64;
        fn store_u8(at: u64, v: u32);
        fn store_u64(at: u64, v: u64);
        fn error_set(block: u64);
        fn config_get(key: u64) -> u64;
        #[link_name = "var_get"]
        fn env_var_get(key: u64) -> u64;
        #[link_name = "var_set"]
        fn env_var_set(key: u64, value: u64);
        fn log_debug(block: u64);
        fn log_info(block: u64);
        fn log_warn(block: u64);
        fn log_error(block: u64);
        fn http_request(request: u64, body: u64) -> u64;
        fn http_status_code() -> u32;
        fn http_headers() -> u64;
    }

    #[link(wasm_import_module = "extism:host/user")]
    extern "C" {
        fn tool_exec(block: u64) -> u64;
        fn tool_emit(block: u64) -> u64;
        fn tool_recv(block: u64) -> u64;
        fn tool_call(block: u64) -> u64;
        #[cfg(not(feature = "portable"))]
        fn tool_read(to: *mut u8, at: u64, n: u32) -> u32;
        #[cfg(not(feature = "portable"))]
        fn tool_write(from: *const u8, n: u32);
    }

    // Safety, here and below: the host checks every offset, and reads and
    // writes no more of our memory than it is given.

    fn put(b: &[u8]) -> u64 {
        if b.is_empty() {
            return 0;
        }
        unsafe {
            let block = alloc(b.len() as u64);
            let mut words = b.chunks_exact(8);
            let mut at = block;
            for w in &mut words {
                store_u64(at, u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]));
                at += 8;
            }
            for c in words.remainder() {
                store_u8(at, *c as u32);
                at += 1;
            }
            block
        }
    }

    fn take(block: u64) -> Vec<u8> {
        if block == 0 {
            return Vec::new();
        }
        unsafe {
            let n = length(block);
            let mut b = Vec::with_capacity(n as usize);
            let mut i = 0;
            while i + 8 <= n {
                b.extend_from_slice(&load_u64(block + i).to_le_bytes());
                i += 8;
            }
            while i < n {
                b.push(load_u8(block + i) as u8);
                i += 1;
            }
            free(block);
            b
        }
    }

    #[cfg(not(feature = "portable"))]
    pub fn input() -> Vec<u8> {
        unsafe {
            let n = input_length() as usize;
            let mut b = vec![0; n];
            if n > 0 {
                let got = tool_read(b.as_mut_ptr(), 0, n as u32);
                b.truncate(got as usize);
            }
            b
        }
    }

    #[cfg(not(feature = "portable"))]
    pub fn output(b: &[u8]) {
        unsafe { tool_write(b.as_ptr(), b.len() as u32) }
    }

    #[cfg(feature = "portable")]
    pub fn input() -> Vec<u8> {
        unsafe {
            let n = input_length();
            let mut b = Vec::with_capacity(n as usize);
            let mut i = 0;
            while i + 8 <= n {
                b.extend_from_slice(&input_load_u64(i).to_le_bytes());
                i += 8;
            }
            while i < n {
                b.push(input_load_u8(i) as u8);
                i += 1;
            }
            b
        }
    }

    #[cfg(feature = "portable")]
    pub fn output(b: &[u8]) {
        unsafe { output_set(put(b), b.len() as u64) }
    }

    pub fn error(text: &str) {
        unsafe { error_set(put(text.as_bytes())) }
    }

    /// A panic is a trap, and its message would be lost: the host shows what
    /// was set as an error before one.
    pub fn tell_panics() {
        std::panic::set_hook(Box::new(|info| error(&info.to_string().replace('\n', " "))));
    }

    pub fn config(key: &str) -> Option<String> {
        let v = unsafe { config_get(put(key.as_bytes())) };
        if v == 0 {
            return None;
        }
        String::from_utf8(take(v)).ok()
    }

    pub fn var_get(key: &str) -> Option<Vec<u8>> {
        match unsafe { env_var_get(put(key.as_bytes())) } {
            0 => None,
            v => Some(take(v)),
        }
    }

    pub fn var_set(key: &str, value: Option<&[u8]>) {
        unsafe { env_var_set(put(key.as_bytes()), value.map_or(0, put)) }
    }

    pub fn log(level: Level, line: &str) {
        let block = put(line.as_bytes());
        unsafe {
            match level {
                Level::Debug => log_debug(block),
                Level::Info => log_info(block),
                Level::Warn => log_warn(block),
                Level::Error => log_error(block),
            }
        }
    }

    pub fn http(request: &str, body: &[u8]) -> (u16, Vec<u8>, Vec<u8>) {
        unsafe {
            let out = take(http_request(put(request.as_bytes()), put(body)));
            let status = http_status_code() as u16;
            let headers = if status == 0 { Vec::new() } else { take(http_headers()) };
            (status, headers, out)
        }
    }

    pub fn exec(q: &str) -> Vec<u8> {
        take(unsafe { tool_exec(put(q.as_bytes())) })
    }

    pub fn emit(q: &str) -> Vec<u8> {
        take(unsafe { tool_emit(put(q.as_bytes())) })
    }

    pub fn recv() -> Vec<u8> {
        take(unsafe { tool_recv(0) })
    }

    pub fn call(q: &str) -> Vec<u8> {
        take(unsafe { tool_call(put(q.as_bytes())) })
    }
}
