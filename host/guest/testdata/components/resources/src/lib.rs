//! A component with resources of its own.
wit_bindgen::generate!({ path: "wit", world: "resources" });

use exports::test::resources::counters::*;
use std::cell::Cell;

static mut LIVE: u32 = 0;

fn live(by: i32) -> u32 {
    unsafe {
        LIVE = LIVE.wrapping_add_signed(by);
        LIVE
    }
}

struct Mine {
    n: Cell<u32>,
    label: String,
}

impl Drop for Mine {
    fn drop(&mut self) {
        live(-1);
        if self.label == "trap" {
            panic!();
        }
    }
}

impl GuestCounter for Mine {
    fn new(start: u32, label: String) -> Self {
        live(1);
        Mine { n: Cell::new(start), label }
    }
    fn get(&self) -> u32 {
        self.n.get()
    }
    fn add(&self, n: u32) -> u32 {
        self.n.set(self.n.get() + n);
        self.n.get()
    }
    fn sum(of: Vec<CounterBorrow<'_>>) -> u32 {
        of.iter().map(|c| c.get::<Mine>().n.get()).sum()
    }
    fn merge(a: Counter, b: Counter) -> Counter {
        let n = a.get::<Mine>().n.get() + b.get::<Mine>().n.get();
        Counter::new(Mine::new(n, a.get::<Mine>().label.clone()))
    }
    fn label(&self) -> String {
        self.label.clone()
    }
}

struct Window {
    of: Counter,
}

impl GuestView for Window {
    fn new(of: Counter) -> Self {
        Window { of }
    }
    fn get(&self) -> u32 {
        self.of.get::<Mine>().n.get()
    }
}

struct Component;

impl Guest for Component {
    type Counter = Mine;
    type View = Window;
    fn live(n: u32) -> (u32, u32) {
        let before = live(0);
        let views: Vec<View> = (0..n).map(|i| View::new(Window::new(Counter::new(Mine::new(i, String::new()))))).collect();
        let most = live(0);
        drop(views);
        (most - before, live(0))
    }
    fn give(n: u32) -> Vec<Counter> {
        (0..n).map(|i| Counter::new(Mine::new(i, "given".to_string()))).collect()
    }
    fn find(label: String) -> Result<Option<Counter>, String> {
        match label.as_str() {
            "none" => Ok(None),
            "error" => Err("no such counter".to_string()),
            _ => Ok(Some(Counter::new(Mine::new(1, label)))),
        }
    }
}

export!(Component);
