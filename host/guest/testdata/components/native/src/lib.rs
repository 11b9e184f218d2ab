// A component that speaks WASI 0.2 itself: no adapter is in it.
wit_bindgen::generate!({ inline: "
package test:native;

world native {
  record entry { name: string, directory: bool, size: u64 }

  export read: func(path: string) -> result<string, string>;
  export write: func(path: string, text: string) -> result<u64, string>;
  export list-dir: func(path: string) -> result<list<entry>, string>;
  export remove: func(path: string) -> result<_, string>;
  export link: func(target: string, path: string) -> result<_, string>;
  export sleep: func(ms: u64) -> bool;
  export random: func(n: u64) -> list<u8>;
  export stale: func() -> u32;
  export print: func(text: string);
  export leak: func(n: u32) -> u32;
}
" });

use wasip2::clocks::monotonic_clock;
use wasip2::filesystem::preopens::get_directories;
use wasip2::filesystem::types::*;

struct Component;

fn find(path: &str) -> Result<(Descriptor, String), String> {
    for (d, name) in get_directories() {
        if let Some(rest) = path.strip_prefix(&name) {
            let rest = rest.trim_start_matches('/');
            return Ok((d, if rest.is_empty() { ".".into() } else { rest.into() }));
        }
    }
    Err(format!("no folder holds {path}"))
}

fn say(e: ErrorCode) -> String { e.name().to_string() }

impl Guest for Component {
    fn read(path: String) -> Result<String, String> {
        let (d, name) = find(&path)?;
        let f = d.open_at(PathFlags::SYMLINK_FOLLOW, &name, OpenFlags::empty(), DescriptorFlags::READ).map_err(say)?;
        let s = f.read_via_stream(0).map_err(say)?;
        drop(f);
        let mut all = Vec::new();
        while let Ok(p) = s.blocking_read(1 << 16) { all.extend(p); }
        String::from_utf8(all).map_err(|e| e.to_string())
    }
    fn write(path: String, text: String) -> Result<u64, String> {
        let (d, name) = find(&path)?;
        let f = d.open_at(PathFlags::empty(), &name, OpenFlags::CREATE | OpenFlags::TRUNCATE, DescriptorFlags::WRITE).map_err(say)?;
        let s = f.write_via_stream(0).map_err(say)?;
        for part in text.as_bytes().chunks(4096) { s.blocking_write_and_flush(part).map_err(|_| "stream".to_string())?; }
        Ok(f.stat().map_err(say)?.size)
    }
    fn list_dir(path: String) -> Result<Vec<Entry>, String> {
        let (d, name) = find(&path)?;
        let f = d.open_at(PathFlags::SYMLINK_FOLLOW, &name, OpenFlags::DIRECTORY, DescriptorFlags::READ).map_err(say)?;
        let s = f.read_directory().map_err(say)?;
        let mut out = Vec::new();
        while let Some(e) = s.read_directory_entry().map_err(say)? {
            let st = f.stat_at(PathFlags::empty(), &e.name).map_err(say)?;
            out.push(Entry { directory: e.type_ == DescriptorType::Directory, size: st.size, name: e.name });
        }
        Ok(out)
    }
    fn remove(path: String) -> Result<(), String> {
        let (d, name) = find(&path)?;
        d.unlink_file_at(&name).map_err(say)
    }
    fn link(target: String, path: String) -> Result<(), String> {
        let (d, name) = find(&path)?;
        d.symlink_at(&target, &name).map_err(say)
    }
    fn sleep(ms: u64) -> bool {
        let before = monotonic_clock::now();
        monotonic_clock::subscribe_duration(ms * 1_000_000).block();
        monotonic_clock::now() - before >= ms * 1_000_000
    }
    fn random(n: u64) -> Vec<u8> { wasip2::random::random::get_random_bytes(n) }
    fn stale() -> u32 {
        // A handle that was dropped is used once more.
        let p = monotonic_clock::subscribe_duration(0);
        let q = unsafe { monotonic_clock::Pollable::from_handle(p.handle()) };
        drop(p);
        let ready = q.ready();
        core::mem::forget(q);
        ready as u32
    }
    fn print(text: String) {
        wasip2::cli::stdout::get_stdout().blocking_write_and_flush(text.as_bytes()).unwrap();
        wasip2::cli::stderr::get_stderr().blocking_write_and_flush(text.as_bytes()).unwrap();
    }
    fn leak(n: u32) -> u32 {
        for _ in 0..n { core::mem::forget(monotonic_clock::subscribe_duration(0)); }
        monotonic_clock::subscribe_duration(0).take_handle()
    }
}

export!(Component);
