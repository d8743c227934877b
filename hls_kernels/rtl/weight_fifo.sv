// The weight stream: words of COLUMNS rows of W, TILE_K values each, 512 deep as the depth of a
// block RAM of 72 bits.
module weight_fifo #(
    parameter WIDTH = 128,
    parameter DEPTH = 512
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [WIDTH-1:0] in_word,
    output wire empty,
    input wire pop,                 // never while empty
    output reg [WIDTH-1:0] word     // the word popped in the cycle before
);
    localparam PLACE_BITS = $clog2(DEPTH);

    // A word is read a cycle after it was written, at the earliest.
    (* ram_style = "block", no_rw_check *)
    reg [WIDTH-1:0] words[0:DEPTH-1];
    reg [PLACE_BITS:0] tail, head;  // one bit more than a place: full and empty differ

    assign empty = tail == head;
    assign in_ready = tail[PLACE_BITS-1:0] != head[PLACE_BITS-1:0] || empty;

    always @(posedge clk) begin
        if (in_valid && in_ready) words[tail[PLACE_BITS-1:0]] <= in_word;
        if (pop) word <= words[head[PLACE_BITS-1:0]];
        if (rst) begin
            tail <= 0;
            head <= 0;
        end else begin
            if (in_valid && in_ready) tail <= tail + 1'b1;
            if (pop) head <= head + 1'b1;
        end
    end
endmodule
