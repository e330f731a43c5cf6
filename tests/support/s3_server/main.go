// A second implementation of S3, besides moto: gofakes3, in memory, with one bucket.
package main

import (
	"log"
	"net/http"
	"os"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	address, bucket := os.Args[1], os.Args[2]
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(address, gofakes3.New(backend).Server()))
}
