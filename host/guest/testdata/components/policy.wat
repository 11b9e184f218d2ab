;; A policy: restrict takes a call and answers a decision, both as JSON text. It
;; allows calls of an even length.
(component
  (core module $main
    (memory (export "memory") 16)
    (global $next (mut i32) (i32.const 4096))
    (data (i32.const 64) "{\"effect\":\"allow\",\"rule\":\"even\"}")
    (data (i32.const 128) "{\"effect\":\"deny\",\"rule\":\"odd\",\"reason\":\"this call is odd\"}")
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $next)
      (global.set $next (i32.add (global.get $next) (local.get 3))))
    (func (export "restrict") (param i32 i32) (result i32)
      (i32.store (i32.const 16) (i32.const 64))
      (i32.store (i32.const 20) (i32.const 32))
      (if (i32.and (local.get 1) (i32.const 1)) (then
        (i32.store (i32.const 16) (i32.const 128))
        (i32.store (i32.const 20) (i32.const 58))))
      (i32.const 16)))
  (core instance $m (instantiate $main))
  (func $restrict (param "call" string) (result string)
    (canon lift (core func $m "restrict") (memory (core memory $m "memory")) (realloc (core func $m "realloc"))))
  (export "restrict" (func $restrict)))
