// Package operations holds the tests and measurements behind docs/operations.md.
package operations
