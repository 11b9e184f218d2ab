module github.com/toold/toold

go 1.26
