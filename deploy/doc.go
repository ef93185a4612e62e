// Package deploy holds nothing but the tests of the files beside it.
package deploy
