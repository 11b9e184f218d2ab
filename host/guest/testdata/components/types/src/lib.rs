wit_bindgen::generate!({ world: "types", path: "wit" });

use exports::test::types::echo::*;

struct Component;

impl Guest for Component {
    fn bools(v: bool) -> bool { v }
    fn s8s(v: i8) -> i8 { v }
    fn s16s(v: i16) -> i16 { v }
    fn s32s(v: i32) -> i32 { v }
    fn s64s(v: i64) -> i64 { v }
    fn u8s(v: u8) -> u8 { v }
    fn u16s(v: u16) -> u16 { v }
    fn u32s(v: u32) -> u32 { v }
    fn u64s(v: u64) -> u64 { v }
    fn f32s(v: f32) -> f32 { v }
    fn f64s(v: f64) -> f64 { v }
    fn chars(v: char) -> char { v }
    fn strings(v: String) -> String { v }
    fn bytes(v: Vec<u8>) -> Vec<u8> { v }
    fn lists(v: Vec<Vec<i64>>) -> Vec<Vec<i64>> { v }
    fn records(v: Person) -> Person { v }
    fn tuples(v: (u8, String, f64)) -> (u8, String, f64) { v }
    fn variants(v: Shape) -> Shape { v }
    fn variant_lists(v: Vec<Shape>) -> Vec<Shape> { v }
    fn enums(v: Color) -> Color { v }
    fn options(v: Option<Option<String>>) -> Option<Option<String>> { v }
    fn results(v: Result<u32, String>) -> Result<u32, String> { v }
    fn empty_results(v: Result<(), ()>) -> Result<(), ()> { v }
    fn flagged(v: Perms) -> Perms { v }
    fn many(a: u8, b: i64, c: String, d: f32, e: Point, f: Point, g: Point, h: String, i: Vec<u16>, j: bool) -> String {
        format!("{a} {b} {c} {d} {},{} {},{} {},{} {h} {i:?} {j}", e.x, e.y, f.x, f.y, g.x, g.y)
    }
    fn nested(v: Vec<(Option<Shape>, Result<Vec<Color>, Perms>)>) -> Vec<(Option<Shape>, Result<Vec<Color>, Perms>)> { v }
    fn nothing() {}
    fn fail(why: String) -> Result<(), String> { Err(why) }
    fn grow(pages: u32) -> u32 {
        let mut v: Vec<Vec<u8>> = Vec::new();
        for _ in 0..pages { v.push(vec![1; 65536]); }
        v.iter().map(|p| p[100] as u32).sum()
    }
}

export!(Component);
