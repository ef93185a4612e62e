// Package monitoring holds nothing but the tests of the files beside it.
package monitoring
