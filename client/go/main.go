// A client of embstore in Go, of generated code and gRPC alone: it makes a table, trains two rows
// and reads them. docs/guide/other-languages.md has it, and what it prints.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	embstore "trainer/embstorev1"
)

// Client makes calls of one store, one after the other.
type Client struct {
	stub     embstore.EmbstoreClient
	info     *embstore.GetServerInfoReply
	id       string
	sequence uint64
}

// Connect returns a client of the store at an address.
func Connect(ctx context.Context, address string) (*Client, error) {
	connection, err := grpc.DialContext(
		ctx, address,
		grpc.WithInsecure(),
		grpc.WithDisableRetry(), // attempts would be the client's own: they carry an origin
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(math.MaxInt32), // the default is less than the server may send
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
	)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	client := &Client{stub: embstore.NewEmbstoreClient(connection), id: hex.EncodeToString(id)}
	client.info, err = client.stub.GetServerInfo(ctx, &embstore.GetServerInfoRequest{})
	return client, err
}

// origin says which call of this client one is, so that it is applied once. Each call is done
// before the next one begins, so those below are finished.
func (c *Client) origin() *embstore.Origin {
	c.sequence++
	known := c.info.Context
	return &embstore.Origin{
		ClientId: c.id, Sequence: c.sequence, FinishedBelow: c.sequence,
		Instance: known.Instance, Epoch: known.Epoch, StoreId: known.StoreId,
	}
}

// Update applies gradients, a row of them for each key; it returns t, the table's updates so far.
func (c *Client) Update(
	ctx context.Context, table string, keys []int64, gradients []float32,
) (uint64, error) {
	var payload []byte
	placed := &embstore.TableGradients{Table: table}
	placed.Keys = place(&payload, keys, len(keys))
	placed.Gradients = place(&payload, gradients, len(keys), len(gradients)/len(keys))
	header := &embstore.UpdateRequest_Header{
		Origin: c.origin(), Tables: []*embstore.TableGradients{placed},
	}
	reply, err := c.stub.Update(ctx, &embstore.UpdateRequest{Header: header, Payload: payload})
	return reply.GetHeader().GetT()[table], err
}

// Lookup returns the rows of keys, one after the other.
func (c *Client) Lookup(ctx context.Context, table string, keys []int64) ([]float32, error) {
	var payload []byte
	asked := &embstore.TableKeys{Table: table, Keys: place(&payload, keys, len(keys))}
	header := &embstore.LookupRequest_Header{Tables: []*embstore.TableKeys{asked}}
	reply, err := c.stub.Lookup(ctx, &embstore.LookupRequest{Header: header, Payload: payload})
	if err != nil {
		return nil, err
	}
	found := reply.Header.Tables[0].Rows
	rows := make([]float32, found.Shape[0]*found.Shape[1])
	for i := range rows {
		at := reply.Payload[found.Offset+4*uint64(i):]
		rows[i] = math.Float32frombits(binary.LittleEndian.Uint32(at))
	}
	return rows, nil
}

// place appends an array to a payload, where any type is aligned, and says where it lies.
func place(payload *[]byte, array interface{}, shape ...int) *embstore.Array {
	for len(*payload)%64 != 0 {
		*payload = append(*payload, 0)
	}
	placed := &embstore.Array{Offset: uint64(len(*payload))}
	for _, length := range shape {
		placed.Shape = append(placed.Shape, uint64(length))
	}
	switch values := array.(type) {
	case []int64:
		placed.Dtype = embstore.DType_DTYPE_INT64
		for _, value := range values {
			*payload = binary.LittleEndian.AppendUint64(*payload, uint64(value))
		}
	case []float32:
		placed.Dtype = embstore.DType_DTYPE_FLOAT32
		for _, value := range values {
			*payload = binary.LittleEndian.AppendUint32(*payload, math.Float32bits(value))
		}
	}
	return placed
}

func run(ctx context.Context, address string) error {
	client, err := Connect(ctx, address)
	if err != nil {
		return err
	}
	config := &embstore.TableConfig{
		Name: "go/items", Dim: 2, Rows: 1000,
		Optimizer:   &embstore.TableConfig_Sgd{Sgd: &embstore.Sgd{LearningRate: 0.5}},
		Initializer: &embstore.TableConfig_Constant{Constant: &embstore.Constant{Value: 1}},
	}
	create := &embstore.CreateTableRequest{Origin: client.origin(), Config: config}
	made, err := client.stub.CreateTable(ctx, create)
	if err != nil {
		return err
	}
	fmt.Println("table", made.Table.Config.Name, "of", made.Table.Config.Rows, "rows")
	keys := []int64{7, 999}
	t, err := client.Update(ctx, "go/items", keys, []float32{1, -1, 4, 0})
	if err != nil {
		return err
	}
	rows, err := client.Lookup(ctx, "go/items", keys)
	if err != nil {
		return err
	}
	fmt.Println("t", t, "rows", rows)
	var trailer metadata.MD
	asked := &embstore.GetTableRequest{Table: "none"}
	_, err = client.stub.GetTable(ctx, asked, grpc.Trailer(&trailer))
	fmt.Println("refused:", trailer.Get("embstore-error"))
	if err == nil {
		return fmt.Errorf("expected no table %q", asked.Table)
	}
	return nil
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
