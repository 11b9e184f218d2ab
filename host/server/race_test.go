//go:build race

package server

// raceEnabled makes tests of volume smaller where every byte costs fifty times as
// much.
const raceEnabled = true
